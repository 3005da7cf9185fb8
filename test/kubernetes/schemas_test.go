package kubernetes

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yannh/kubeconform/pkg/validator"
)

// examples is the folder of the manifests.
const examples = "../../examples/kubernetes"

// validate returns what kubeconform says about a manifest's objects, each of which must have a schema.
func validate(t *testing.T, manifest string) []validator.Result {
	t.Helper()
	v, err := validator.New([]string{"schemas/{{ .ResourceKind }}{{ .KindSuffix }}.json"}, validator.Opts{Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	return v.Validate("manifest", io.NopCloser(strings.NewReader(manifest)))
}

// The manifests are valid by the published schemas.
func TestSchemas(t *testing.T) {
	for file, objects := range map[string]int{"checkpoints.yaml": 1, "job.yaml": 2, "jobset.yaml": 1, "trainer.yaml": 2} {
		text, err := os.ReadFile(filepath.Join(examples, file))
		if err != nil {
			t.Fatal(err)
		}
		results := validate(t, string(text))
		if len(results) != objects {
			t.Errorf("%s has %d objects, want %d", file, len(results), objects)
		}
		for _, r := range results {
			if r.Status != validator.Valid {
				t.Errorf("%s: %v", file, r.Err)
			}
		}
	}
}

// A wrong field of each object is found.
func TestSchemasFindWrongFields(t *testing.T) {
	for _, c := range []struct{ file, right, wrong, want string }{
		{"checkpoints.yaml", "  accessModes:", "  accessMode:", "additional properties 'accessMode' not allowed"},
		{"job.yaml", "  clusterIP: None", "  clusterIp: None", "additional properties 'clusterIp' not allowed"},
		{"job.yaml", "        - name: train\n          image", "        - image", "missing property 'name'"},
		{"job.yaml", "backoffLimit: 6", "backoffLimit: six", "got string, want integer"},
		{"jobset.yaml", "action: FailJobSet", "action: FailJob", "value must be one of 'FailJobSet'"},
		{"trainer.yaml", "numProcPerNode: auto", "procPerNode: auto", "additional properties 'procPerNode' not allowed"},
		{"trainer.yaml", "    name: goddp\n  trainer:", "    named: goddp\n  trainer:", "missing property 'name'"},
	} {
		text, err := os.ReadFile(filepath.Join(examples, c.file))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), c.right); n != 1 {
			t.Fatalf("%s has %q %d times, want once", c.file, c.right, n)
		}
		found := ""
		for _, r := range validate(t, strings.Replace(string(text), c.right, c.wrong, 1)) {
			if r.Status != validator.Valid {
				found += r.Err.Error()
			}
		}
		if !strings.Contains(found, c.want) {
			t.Errorf("%s with %q: kubeconform finds %q, want %q", c.file, c.wrong, found, c.want)
		}
	}
}
