package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/qlogd/qlogd/internal/durations"
)

// duration is a flag of a duration, which may be in days and weeks.
type duration time.Duration

func (d *duration) String() string { return time.Duration(*d).String() }
func (d *duration) Type() string   { return "duration" }
func (d *duration) Set(text string) error {
	v, err := durations.Parse(text)
	if err == nil {
		*d = duration(v)
	}
	return err
}

// units are those of the API's fields, by the tag of a flag that sets one.
var units = map[string]time.Duration{
	"ms": time.Millisecond, "ms list": time.Millisecond, "s": time.Second,
}

// inUnit returns a duration as a whole number of a unit.
func inUnit(text, unit string) (int64, error) {
	d, err := durations.Parse(text)
	if err == nil && d%units[unit] != 0 {
		err = fmt.Errorf("%.64q is not a multiple of %v", text, units[unit])
	}
	return int64(d / units[unit]), err
}

// items returns those of a text, without spaces and empty ones.
func items(text string) (all []string) {
	for item := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' }) {
		all = append(all, strings.TrimSpace(item))
	}
	return all
}

// older is the earlier form of a flag of a duration, or of a list of them: its value is a whole
// number of a unit.
type older struct {
	flags    *pflag.FlagSet
	name, as string
}

func (o older) String() string { return "" }
func (o older) Type() string   { return "int" }
func (o older) Set(text string) error {
	unit, isList := strings.CutSuffix(o.as, " list")
	values := []string{text}
	if isList {
		values = items(text)
	}
	for i, v := range values {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil && isList {
			return errors.New("must be a list of whole numbers")
		} else if err != nil {
			return errNotWhole
		}
		values[i] = strconv.FormatInt(n, 10) + unit
	}
	return o.flags.Set(o.name, strings.Join(values, ","))
}

var errNotWhole = errors.New("must be a whole number")

// olderFlag declares the earlier form of a flag, hidden.
func olderFlag(cmd *cobra.Command, was, name, as string) {
	f := cmd.Flags().VarPF(older{cmd.Flags(), name, as}, was, "", "")
	f.Hidden = true
}
