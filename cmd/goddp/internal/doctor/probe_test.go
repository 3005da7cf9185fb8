package doctor_test

import (
	"testing"

	"github.com/goddp/goddp/cmd/goddp/internal/doctor"
)

// A host has the identity that NCCL gives it.
func TestProbeReadsHostID(t *testing.T) {
	t.Setenv("NCCL_HOSTID", "")
	boot := doctor.Probe(doctor.Options{}).HostID
	t.Setenv("NCCL_HOSTID", "host1")
	if f := doctor.Probe(doctor.Options{}); f.HostID != "host1" || boot == "host1" {
		t.Errorf("the host is %q, and %q with NCCL_HOSTID=host1", boot, f.HostID)
	}
}
