package api

import (
	_ "net/http"

	_ "github.com/qlogd/qlogd/api/wire"
	_ "github.com/qlogd/qlogd/event"
	_ "github.com/qlogd/qlogd/fsm"  // want: api must not import fsm
	_ "github.com/qlogd/qlogd/log"  // want: api must not import log
	_ "github.com/qlogd/qlogd/raft" // want: api must not import raft
)
