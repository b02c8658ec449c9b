package replay

import (
	_ "github.com/qlogd/qlogd/fsm" // want: replay must not import fsm
	_ "github.com/qlogd/qlogd/internal/eventlog"
	_ "github.com/qlogd/qlogd/projections"
)
