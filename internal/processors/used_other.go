//go:build !unix

package processors

import (
	"errors"
	"time"
)

func used() (time.Duration, error) { return 0, errors.ErrUnsupported }
