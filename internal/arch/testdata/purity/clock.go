package purity

import (
	"fmt"
	"time"

	"github.com/oklog/ulid/v2"
)

func clock() (time.Time, time.Duration) {
	t := time.Now()                    // want: uses time.Now
	d := time.Since(t)                 // want: uses time.Since
	now := time.Now                    // want: uses time.Now
	_ = fmt.Sprint(now(), ulid.Make()) // want: uses ulid.Make
	fmt.Printf("%d", 1)                // want: uses fmt.Printf
	time.Sleep(time.Second)            // want: uses time.Sleep
	return t.In(time.Local), d         // want: uses time.Local
}

func given(ms int64) time.Time { return time.UnixMilli(ms).UTC().Add(time.Second) }
