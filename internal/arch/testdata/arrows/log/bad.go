package log

import (
	_ "log" // want: log must not import log: only raft may

	_ "github.com/qlogd/qlogd/internal/event" // want: log must not import internal/event
	_ "github.com/qlogd/qlogd/internal/vfs"
)
