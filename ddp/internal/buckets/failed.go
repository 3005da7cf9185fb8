package buckets

// Failed returns the error of a failed reduction of the current pass. It returns nil if no reduction is
// known to have failed. It does not wait. An engine may call Failed during a pass, so that it can stop
// computing gradients that are useless. Finish or, if Finish does not wait for the outcome, Err also
// returns the error of a failed reduction.
func (r *Reducer) Failed() error {
	for _, w := range r.works {
		if w, ok := w.(interface{ Done() (bool, error) }); ok {
			if _, err := w.Done(); err != nil {
				return err
			}
		}
	}
	return nil
}
