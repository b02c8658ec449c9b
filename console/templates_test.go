package console

import "testing"

// Every template parses: one that does not keeps the node from starting.
func TestTemplates(t *testing.T) {
	if _, err := loadTemplates(); err != nil {
		t.Fatal(err)
	}
}
