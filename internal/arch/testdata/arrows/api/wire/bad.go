package wire

import (
	_ "encoding/json"

	_ "github.com/qlogd/qlogd/event" // want: api/wire must not import event
)
