package main

import (
	"testing"
)

// A node with an admin address stops.
func TestAdminListenerEndsWithTheNode(t *testing.T) {
	n, _ := testNode(t, t.TempDir(), "--admin-addr", "127.0.0.1:0")
	stopNode(t, n)
}
