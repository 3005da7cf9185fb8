package reducer

import "github.com/goddp/goddp/comm"

// Failed is why a reduction of the running pass has failed, nil where none is known
// to have. It does not wait: an engine may ask in the middle of a pass, and cut
// short what is of no use any more. Finish returns the failure, too.
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
