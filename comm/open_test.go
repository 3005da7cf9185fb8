package comm

import (
	"testing"

	"github.com/goddp/goddp/internal/jobenv"
)

// The job's secret protects the data between hosts, unless the user says that the network is trusted.
func TestSecretProtectsData(t *testing.T) {
	const secret = "the secret of this job"
	t.Setenv(jobenv.TokenVar, secret)
	for _, trusts := range []string{"GODDP_TEST_NOTHING", jobenv.UnprotectedVar, jobenv.InsecureVar} {
		t.Run(trusts, func(t *testing.T) {
			t.Setenv(trusts, "1")
			j, err := newJoiner(&Options{World: &World{Size: 2}})
			if err != nil {
				t.Fatal(err)
			}
			o, err := j.hostOptions()
			if err != nil || string(o.Member.Secret) != secret || o.Unprotected != (trusts != "GODDP_TEST_NOTHING") {
				t.Errorf("the options are %+v, %v", o, err)
			}
		})
	}
}
