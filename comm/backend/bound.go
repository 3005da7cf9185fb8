package backend

import "context"

// Bound is a context that ends with ctx or with life, the context of a group or of a
// part of it, whose cause it then has: what is done on a group's behalf waits for nobody
// once that broke. The function releases it.
func Bound(ctx, life context.Context) (context.Context, func()) {
	return bound(ctx, life, func(cause error) error { return cause })
}

// BoundSplit is Bound for making a group out of another, whose context is life: the
// cause is then a [*BrokenError].
func BoundSplit(ctx, life context.Context) (context.Context, func()) {
	return bound(ctx, life, func(cause error) error { return &BrokenError{cause} })
}

func bound(ctx, life context.Context, as func(cause error) error) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(as(context.Cause(life))) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}
