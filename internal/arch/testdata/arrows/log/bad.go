package log

import (
	_ "github.com/qlogd/qlogd/internal/event" // want: log must not import internal/event
	_ "github.com/qlogd/qlogd/internal/vfs"
)
