package reducer

import "github.com/goddp/goddp/comm"

// Failed returns the error of a reduction of the current pass that has failed, or nil if no failure is
// known. It does not wait. An engine may call it during a pass, to end a pass early that is useless.
// Finish returns the failure too.
func (r *Reducer) Failed() error {
	for _, w := range r.works {
		if w, ok := w.(interface{ State() (comm.State, error) }); ok {
			if _, err := w.State(); err != nil {
				return err
			}
		}
	}
	return nil
}
