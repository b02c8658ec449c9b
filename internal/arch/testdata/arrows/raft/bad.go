package raft

import (
	"log" // want: import log as stdlog

	"github.com/hashicorp/raft" // want: import github.com/hashicorp/raft as hraft
	hraft "github.com/hashicorp/raft"
	_ "github.com/hashicorp/raft-wal"
	_ "github.com/qlogd/qlogd/fsm" // want: raft must not import fsm
	_ "github.com/qlogd/qlogd/internal/checkpoint"
)

var _ = raft.Leader
var _ = hraft.Leader
var _ = log.Println
