package webhook

import (
	"net/http"
	"strconv"
	"strings"
)

// HopsHeader counts the pushes and hooks that a request has passed through, so that a loop of them
// ends. It is kept with the message, in lower case.
const HopsHeader = "Qlogd-Hops"

// MaxHops is the maximum number of hops.
const MaxHops = 8

// Hops returns the number of pushes and hooks that a request has passed through.
func Hops(header http.Header) int { return hops(header.Get(HopsHeader)) }

// hops parses a value of HopsHeader; anything but a number is 0.
func hops(text string) int {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil && strings.Trim(text, "0123456789") == "" && text != "" {
		return MaxHops + 1 // too large
	}
	return int(n)
}

// AddHop sets the header of a request that a message causes; of are the message's headers by name.
func AddHop(header http.Header, of func(name string) string) {
	header.Set(HopsHeader, strconv.Itoa(hops(of(strings.ToLower(HopsHeader)))+1))
}
