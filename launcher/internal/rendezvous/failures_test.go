package rendezvous

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/wire"
)

func TestFailuresFitInMessages(t *testing.T) {
	failure := func(detail int) Failure {
		return Failure{Host: "host", At: time.Now(), What: "rank 0 exited with code 1", Detail: json.RawMessage(fmt.Sprintf("%q", strings.Repeat("x", detail)))}
	}
	for _, c := range []struct{ failures, detail, agents, want, detailed int }{
		{3, 1000, 3, 3, 3},
		{3, maxFailureBytes / 2, 3, 3, 1},
		{5_000, 0, 3, maxFailureBytes / 300, maxFailureBytes / 300},
		{100, 10_000, 10_000, 20, 0},
	} {
		all := make([]Failure, c.failures)
		for i := range all {
			all[i] = failure(c.detail)
		}
		got := boundFailures(all, c.agents)
		detailed := 0
		for _, f := range got {
			if f.Detail != nil {
				detailed++
			}
		}
		if len(got) < c.want || detailed < c.detailed {
			t.Errorf("%+v: %d failures, %d with details", c, len(got), detailed)
		}
		if n := len(wire.Encode(&toAgent{End: &Result{Failures: got}})); n > maxMessage || n*c.agents > 2*maxAllFailureBytes {
			t.Errorf("%+v: a message of %d bytes", c, n)
		}
	}
}
