package launcher

import (
	"fmt"
	"testing"

	"github.com/goddp/goddp/launcher/internal/rendezvous"
)

// The reaper drops requests about attempts whose orphans are gone. So attempts have different numbers, also if
// the number of a round comes twice.
func TestAgentCountsItsAttempts(t *testing.T) {
	a := &agent{cfg: &Config{}, console: newConsole(nil, nil)}
	for want := range 3 {
		a.begin(&rendezvous.Round{Number: 0, Nodes: 1})
		if a.attempt.number != want {
			t.Errorf("attempt %d has the number %d", want, a.attempt.number)
		}
		a.hurry()
	}
}

// If the agent itself kills a reaper, the message says why, and not that the reaper was killed.
func TestReaperThatIsGivenUp(t *testing.T) {
	r, err := startReaper()
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	r.giveUp("did nothing for 15s")
	r.giveUp("came second")
	for range r.reports {
	}
	want := fmt.Sprintf("the reaper (pid %d), the parent of the workers, did nothing for 15s and was ended", r.cmd.Process.Pid)
	if err := r.lost(); err == nil || err.Error() != want {
		t.Errorf("got %v, want %q", err, want)
	}
}
