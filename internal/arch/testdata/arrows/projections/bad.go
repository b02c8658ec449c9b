package projections

import (
	_ "github.com/qlogd/qlogd/event"
	_ "github.com/qlogd/qlogd/fsm" // want: projections must not import fsm
	_ "github.com/qlogd/qlogd/log" // want: projections must not import log
)
