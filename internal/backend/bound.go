package backend

import "context"

// Bound is a context that ends with ctx or with life, the context of a group or of a
// part of it, whose cause it then has: what is done on a group's behalf waits for nobody
// once that broke. The function releases it.
func Bound(ctx, life context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}
