package rendezvous

// The bounds on what the failures of a round take in a message to one agent, and in the messages to all.
const (
	maxFailureBytes    = maxMessage / 2
	maxAllFailureBytes = 64 << 20
)

// boundFailures returns the failures that fit in a message to each of n agents: the earliest ones, of which
// those that are too long have no details.
func boundFailures(failures []Failure, n int) (bounded []Failure) {
	left := min(maxFailureBytes, maxAllFailureBytes/max(n, 1))
	for _, f := range failures {
		const fields = 256 // bytes of the other fields
		size := fields + len(f.Host) + len(f.What)
		if size > left {
			break
		}
		if size+len(f.Detail) > left {
			f.Detail = nil
		}
		left -= size + len(f.Detail)
		bounded = append(bounded, f)
	}
	return bounded
}
