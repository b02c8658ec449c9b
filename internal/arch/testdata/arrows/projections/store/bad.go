package store

import (
	_ "github.com/qlogd/qlogd/internal/eventlog" // want: projections/store must not import internal/eventlog
	_ "github.com/qlogd/qlogd/projections"
	_ "go.etcd.io/bbolt"
)
