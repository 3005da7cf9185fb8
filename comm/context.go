package comm

import "context"

// Context returns the context of calls that only the group's own timeout bounds. It never ends: if the group fails
// or is aborted, its calls end with an error that says why.
func (pg *ProcessGroup) Context() context.Context { return context.Background() }
