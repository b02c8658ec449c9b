package checkpoint

import (
	"encoding/hex"
	"fmt"
)

// Chain is an event log's chain as nodes tell it to each other: in JSON it is 64
// hex digits.
type Chain [32]byte

// MarshalText implements encoding.TextMarshaler.
func (c Chain) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, c[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Chain) UnmarshalText(b []byte) error {
	if len(b) != 2*len(c) {
		return fmt.Errorf("a chain of %d digits, not %d", len(b), 2*len(c))
	}
	_, err := hex.Decode(c[:], b)
	return err
}
