package raft

import (
	"reflect"

	hraft "github.com/hashicorp/raft"
)

// bound makes sure that whoever waits for a future of hashicorp/raft is told
// when there is nobody left to answer it. What is still in a channel when the
// main loop ends (a transfer of leadership, a question whether it leads), and an
// entry that was committed and not applied, are forgotten there: who waited
// would wait for ever, and hold on to all of a replica that was closed to be
// opened anew. The library's own futures take a channel for that, and it sets it
// for some of them only.
func bound[F hraft.Future](r *Replica, f F) F {
	if v := reflect.ValueOf(f); v.Kind() == reflect.Pointer && v.Elem().Kind() == reflect.Struct {
		// Only Error reads it, which is not called yet.
		if c := v.Elem().FieldByName("ShutdownCh"); c.IsValid() && c.CanSet() && c.IsNil() {
			c.Set(reflect.ValueOf(r.silent))
		}
	}
	return f
}
