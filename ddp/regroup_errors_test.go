package ddp_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/commhook"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// A model whose state would lose the part of a lost rank is not regrouped.
func TestRegroupRefuses(t *testing.T) {
	plain := func(pg *comm.ProcessGroup, o *ddp.Options) *ddp.Model {
		return must.New(ddp.New(nn.Linear(2, 2, nil), pg, o))
	}
	for _, c := range []struct {
		want    string
		regroup func(pg *comm.ProcessGroup) error
	}{
		{"hook PowerSGD", func(pg *comm.ProcessGroup) error {
			return plain(pg, &ddp.Options{Hook: must.New(commhook.NewPowerSGD(nil))}).Regroup(t.Context())
		}},
		{"hook local SGD", func(pg *comm.ProcessGroup) error {
			return plain(pg, &ddp.Options{Hook: commhook.PostLocalSGD(nil)}).Regroup(t.Context())
		}},
		{"ddp/zero", func(pg *comm.ProcessGroup) error {
			model, _, err := zero.New(nn.Linear(2, 2, nil), pg, func(params []*nn.Parameter) (*optim.SGD, error) { return optim.NewSGD(params, nil) }, nil)
			if err != nil {
				return err
			}
			return model.Regroup(t.Context())
		}},
		{"within Join", func(pg *comm.ProcessGroup) error {
			m := plain(pg, nil)
			return m.Join(func() error { return m.Regroup(t.Context()) }, nil)
		}},
		{"within NoSync", func(pg *comm.ProcessGroup) error {
			m := plain(pg, nil)
			return m.NoSync(func() error { return m.Regroup(t.Context()) })
		}},
		{"", func(pg *comm.ProcessGroup) error {
			return plain(pg, &ddp.Options{Hook: commhook.BF16(nil)}).Regroup(t.Context())
		}},
	} {
		commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
			err := c.regroup(pg)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				return fmt.Errorf("got %v, want %q", err, c.want)
			}
			return nil
		})
	}
}
