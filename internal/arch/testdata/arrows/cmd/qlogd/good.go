package main

import (
	_ "github.com/qlogd/qlogd/api"
	_ "github.com/qlogd/qlogd/fsm"
	_ "github.com/qlogd/qlogd/raft"
	_ "github.com/spf13/cobra"
)
