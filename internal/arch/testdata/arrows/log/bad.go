package log

import (
	_ "log" // want: log must not import log: only raft may

	_ "github.com/qlogd/qlogd/event" // want: log must not import event
	_ "github.com/qlogd/qlogd/internal/vfs"
)
