package wire

import (
	_ "encoding/json"

	_ "github.com/qlogd/qlogd/internal/event" // want: api/wire must not import internal/event
)
