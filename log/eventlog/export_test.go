package eventlog

import "github.com/qlogd/qlogd/log"

type logRef = log.Ref
