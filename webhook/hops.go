package webhook

import (
	"net/http"
	"strconv"
	"strings"
)

// HopsHeader has how many pushes and hooks a request has passed, so that a loop of them ends. It
// goes with the message, in lower case.
const HopsHeader = "Qlogd-Hops"

// MaxHops is how many a request may have passed.
const MaxHops = 8

// Hops returns how many pushes and hooks a request has passed.
func Hops(header http.Header) int { return hops(header.Get(HopsHeader)) }

// hops reads a value of HopsHeader. What is no number counts as none.
func hops(text string) int {
	if text == "" {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil && strings.Trim(text, "0123456789") == "" {
		return MaxHops + 1 // too large
	}
	return int(n)
}

// AddHop sets the header of a request that a message causes; of are the message's headers by name.
func AddHop(header http.Header, of func(name string) string) {
	header.Set(HopsHeader, strconv.Itoa(hops(of(strings.ToLower(HopsHeader)))+1))
}
