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
