package event

import "strconv"

// Plural returns a number with its noun: 1 message, 2 messages.
func Plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.FormatInt(n, 10) + " " + many
}
