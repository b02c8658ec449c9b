// Package durations reads durations as people write them: commands, the API's instants and the
// console's forms.
package durations

import (
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// Parse is time.ParseDuration with days (d, 24 hours) and weeks (w): 7d, 1d12h.
func Parse(s string) (time.Duration, error) {
	inHours := daysRE.ReplaceAllStringFunc(s, func(part string) string {
		n, err := strconv.ParseFloat(part[:len(part)-1], 64)
		if err != nil {
			return part
		}
		if n *= 24; part[len(part)-1] == 'w' {
			n *= 7
		}
		return strconv.FormatFloat(n, 'f', -1, 64) + "h"
	})
	d, err := time.ParseDuration(inHours)
	if err != nil {
		return 0, fmt.Errorf("%.64q is not a duration such as 30s, 15m, 36h or 7d", s)
	}
	return d, nil
}

var daysRE = regexp.MustCompile(`[0-9.]+[dw]`)
