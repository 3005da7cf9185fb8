package backend

import "context"

// Bound returns a context that ends when ctx or life ends. life is the context of a group: if it
// ends, its cause, which says why the group broke, becomes the context's cause. The caller must
// call the returned function to release the context.
func Bound(ctx, life context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}
