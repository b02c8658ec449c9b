package eventlog

import (
	_ "github.com/qlogd/qlogd/event"
	_ "github.com/qlogd/qlogd/log"
	_ "github.com/qlogd/qlogd/projections" // want: internal/eventlog must not import projections
)
