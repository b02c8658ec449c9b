package pages

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
)

func TestTry(t *testing.T) {
	var page *struct{ count int }
	for want, do := range map[string]func() error{
		"leads nowhere":  func() error { page.count++; return nil },
		"page 3":         func() error { panic("page 3 already freed") },
		"file too large": func() error { return fmt.Errorf("write: %w", syscall.EFBIG) },
	} {
		err := Try(do)
		assert.ErrorIs(t, err, ErrDamaged)
		assert.True(t, err != nil && strings.Contains(err.Error(), want) &&
			!strings.Contains(err.Error(), "memory"), "%s: %v", want, err)
	}
	full := errors.New("disk full")
	assert.True(t, errors.Is(Try(func() error { return full }), full), "an error of its own is lost")
}
