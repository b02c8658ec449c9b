package system

import (
	"context"

	"github.com/qlogd/qlogd/bench/load"
)

// Runner is a Target of a System that puts the load on itself, within its own
// process: a bare limit would be hidden by the way to it. It has no producers
// and no workers for others.
type Runner interface {
	Run(ctx context.Context, c load.Config) (*load.Result, error)
}

// Load is load.Run for any target of a System.
func Load(ctx context.Context, t load.Target, c load.Config) (*load.Result, error) {
	if r, ok := t.(Runner); ok {
		return r.Run(ctx, c)
	}
	return load.Run(ctx, t, c)
}
