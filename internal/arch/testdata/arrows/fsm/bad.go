package fsm

import (
	_ "log/slog"
	_ "net/http" // want: fsm must not import net/http

	_ "github.com/hashicorp/raft"  // want: fsm must not import github.com/hashicorp/raft
	_ "github.com/qlogd/qlogd/api" // want: fsm must not import api
	_ "github.com/qlogd/qlogd/projections"
	_ "github.com/qlogd/qlogd/projections/store" // want: fsm must not import projections/store
	_ "go.etcd.io/bbolt"                         // want: fsm must not import go.etcd.io/bbolt
)
