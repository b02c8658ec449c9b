// Package verify verifies data directories in the process of a test.
package verify

import (
	"context"

	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/replay"
)

// Dir does what qlogd replay --verify does with a directory.
func Dir(dir string) error {
	card, err := replay.ReadCard(dir)
	if err == nil {
		_, err = replay.Verify(context.Background(), vfs.OS{}, dir, card, nil)
	}
	return err
}
