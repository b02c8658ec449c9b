package client

import (
	_ "net/http"

	_ "github.com/qlogd/qlogd/api/wire"
	_ "github.com/qlogd/qlogd/event"      // want: client must not import event
	_ "github.com/vmihailenco/msgpack/v5" // want: client is for the standard library alone
)
