package zero

import (
	"errors"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// exchange sends the parts of matrices to the ranks that orthogonalize them, or the parts of the results back: see
// [optim.Muon.DivideParts]. Parts that stay on their rank are copied.
func (s *shards) exchange(ms []optim.Matrix, back bool) error {
	parts, dev := map[*nn.Parameter]*part{}, s.pg.Device()
	for _, p := range s.parts {
		parts[p.local] = p
	}
	var failed error
	work := s.pg.With(&comm.CallOptions{Name: "matrices"}).Coalesce(func(pg *comm.ProcessGroup) {
		for _, m := range ms {
			for rank := range s.size {
				lo, hi := parts[m.Param].of(rank)
				has, owns := s.rank == rank, s.rank == m.Rank
				if lo == hi || !has && !owns {
					continue
				}
				var elements device.Tensor
				if owns {
					elements = m.Whole.Flat().Range(lo, hi)
				}
				switch {
				case has && owns && back:
					failed = errors.Join(failed, dev.Copy(dev.Compute(), m.Part.Buf, elements.Buf))
				case has && owns:
					failed = errors.Join(failed, dev.Copy(dev.Compute(), elements.Buf, m.Part.Buf))
				case has && back:
					pg.Recv(m.Part, m.Rank)
				case has:
					pg.Send(m.Part, m.Rank)
				case back:
					pg.Send(elements, rank)
				default:
					pg.Recv(elements, rank)
				}
			}
		}
	})
	return errors.Join(failed, work.Wait(s.pg.Context()))
}
