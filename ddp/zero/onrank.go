package zero

import (
	"errors"

	"github.com/goddp/goddp/comm"
)

// OnRank calls f on one rank, and returns its error on all ranks, which all call OnRank. f may read all parameters, also
// outside of operations, for example to save them or to evaluate the model on that rank alone. In stage 3 the other ranks
// take part in the gathers of what f reads, bucket by bucket, so that no rank ever holds the whole model. f must not write
// parameters, run a backward pass or communicate, and the other ranks wait for it no longer than a collective may take:
// in stage 3 between two gathers.
func (m *Model) OnRank(rank int, f func() error) error {
	s := m.shards
	if len(s.flow.slots) == 0 || s.flow.isWhole || rank < 0 || rank >= s.size {
		return m.Model.OnRank(rank, f)
	}
	err := s.settle()
	if s.rank != rank {
		err = errors.Join(err, s.follow(rank))
	} else if err == nil {
		err = s.lead(f)
	} else {
		s.tell(end)
	}
	return comm.Agree(s.pg.Context(), s.pg, err)
}

// end is what the leading rank tells in place of the index of a bucket when it needs no more gathers.
const end = -1

// gatherError is the panic value of a read, within OnRank, of a parameter that could not be gathered.
type gatherError struct{ error }

// lead calls f, whose gathers the other ranks follow.
func (s *shards) lead(f func() error) (err error) {
	s.flow.leads = true
	defer func() {
		s.flow.leads = false
		switch p := recover().(type) {
		case nil:
		case gatherError:
			err = p.error
		default:
			panic(p)
		}
		err = errors.Join(err, s.tell(end), s.settle())
	}()
	return f()
}

// tell tells the other ranks which bucket is gathered next.
func (s *shards) tell(bucket int) error {
	_, err := comm.AllGatherInts(s.pg.Context(), s.pg, []int64{int64(bucket)})
	return err
}

// follow makes the gathers of the leading rank.
func (s *shards) follow(leader int) error {
	for {
		told, err := comm.AllGatherInts(s.pg.Context(), s.pg, []int64{0})
		if err != nil {
			return err
		}
		i := told[leader][0]
		if i == end {
			return s.settle()
		}
		b := s.buckets[i]
		if err = s.fill(b, 0); err == nil {
			err = b.slot.gather.Wait(s.pg.Context())
		}
		if err != nil {
			s.pg.Abort(err)
			return err
		}
	}
}
