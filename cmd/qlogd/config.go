package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/server"
)

// config holds the settings of a server. Each field is a flag; the same name is its key
// in the file and, in capitals with QLOGD_ before it, its environment variable. Flags
// override the environment, which overrides the file.
type config struct {
	server.Config
	LogLevel, LogFormat string

	file  string // where the settings came from
	level slog.Level
}

// flags declares the settings, with their defaults.
func (c *config) flags(_ *app, cmd *cobra.Command) {
	*c = config{Config: server.DefaultConfig(), LogLevel: "info", LogFormat: "text"}
	c.DataDir = defaultDataDir
	fields(cmd, c)
	opt(cmd, &c.file, "config")
}

// load reads what the command line left open from the environment, then from the file,
// and checks the settings.
func (c *config) load(fs *pflag.FlagSet, getenv func(string) string) (err error) {
	c.Getenv = getenv
	c.InsecureConfirmed = slices.Contains([]string{"1", "true", "yes"}, getenv("QLOGD_INSECURE"))
	// The environment first, for QLOGD_CONFIG names the file.
	fs.VisitAll(func(f *pflag.Flag) {
		name := "QLOGD_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		// insecure is confirmed twice on purpose: neither replaces the other.
		if f.Changed || f.Name == "insecure" || f.Name == "help" || err != nil {
			return
		}
		if v := getenv(name); v != "" {
			if bad := fs.Set(f.Name, v); bad != nil {
				err = usagef("%s: %w", name, flagCause(bad))
			}
		}
	})
	if err == nil && c.file != "" {
		err = c.readFile(fs)
	}
	if err != nil {
		return err
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		return usagef("log-format must be text or json, not %.64q", c.LogFormat)
	}
	if err := c.level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return usagef("log-level must be debug, info, warn or error, not %.64q", c.LogLevel)
	}
	return c.Check()
}

// readFile sets what neither flags nor environment have set. The first unknown key or bad
// value is an error with its line.
func (c *config) readFile(fs *pflag.FlagSet) error {
	b, err := os.ReadFile(c.file)
	if err != nil {
		return usagef("config: %w", err)
	}
	var file yaml.Node
	var settings map[string]yaml.Node
	err = yaml.Unmarshal(b, &file)
	if err == nil {
		err = file.Decode(&settings) // refuses what is no mapping, and names that are set twice
	}
	if err != nil {
		text := strings.Replace(api.YAMLError(err).Error(),
			"map[string]yaml.Node", "settings (name: value)", 1)
		return usagef("%s:%s", c.file, text)
	}
	if len(settings) == 0 {
		return nil
	}
	for pair := range slices.Chunk(file.Content[0].Content, 2) {
		key, value := pair[0], pair[1]
		name := key.Value
		f := fs.Lookup(name)
		text := value.Value
		var list []string
		switch {
		case f == nil || name == "config" || name == "help":
			err = fmt.Errorf("unknown setting %.64q", name)
		case f.Value.Type() == "stringSlice" && value.Kind == yaml.SequenceNode:
			err = value.Decode(&list)
			text = strings.Join(list, ",")
		case value.Kind != yaml.ScalarNode:
			err = fmt.Errorf("%s takes one value", name)
		}
		if err == nil && value.Tag != "!!null" && !f.Changed {
			if err = fs.Set(name, text); err != nil {
				err = fmt.Errorf("%s: %w", name, flagCause(err))
			}
		}
		if err != nil {
			return usagef("%s:%d: %w", c.file, key.Line, err)
		}
	}
	return nil
}

// flagCause removes pflag's own preface from an error.
func flagCause(err error) error {
	if v, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return fmt.Errorf("%.64q: %w", v.GetValue(), v.Unwrap())
	}
	return err
}

var configCommands = group("config",
	local("config check", func(c request, s *config) error {
		if err := s.load(c.flags, c.getenv); err != nil {
			return err
		}
		out := map[string]string{}
		var rows [][]any
		c.flags.VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" && f.Name != "output" && f.Name != "config" {
				out[f.Name] = f.Value.String()
				rows = append(rows, []any{f.Name, f.Value.String()})
			}
		})
		return c.table(out, nil, "setting,value", rows)
	}))
