package client

import (
	_ "net/http"

	_ "github.com/qlogd/qlogd/api/wire"
	_ "github.com/qlogd/qlogd/internal/event" // want: client must not import internal/event
	_ "github.com/vmihailenco/msgpack/v5"     // want: client is for the standard library alone
)
