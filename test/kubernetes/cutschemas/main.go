// Command cutschemas cuts the schemas of the kinds that examples/kubernetes uses out of what Kubernetes, JobSet
// and Kubeflow Trainer publish: Kubernetes' OpenAPI documents, and the others' custom resource definitions. It
// takes them from the projects' Go modules, and writes them for kubeconform:
//
//	cd test/kubernetes && go run ./cutschemas
//
// A schema keeps types, required fields, enumerations, ranges and patterns. It does not allow other fields, as
// kubeconform's strict schemas do. Descriptions and CEL rules are left out. The three projects' licence is
// Apache-2.0, as goddp's.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// sources are the files of the published schemas, and the kinds in them. The files' names are those that
// kubeconform asks for. A module without a version has that of go.mod.
var sources = []struct {
	module, file string
	kinds        map[string]string // file to write, by the name of a definition; one of "" in a custom resource definition
}{
	{"k8s.io/kubernetes@v1.32.2", "api/openapi-spec/v3/apis__batch__v1_openapi.json", map[string]string{"io.k8s.api.batch.v1.Job": "job-batch-v1"}},
	{"k8s.io/kubernetes@v1.32.2", "api/openapi-spec/v3/api__v1_openapi.json", map[string]string{
		"io.k8s.api.core.v1.Service": "service-v1", "io.k8s.api.core.v1.PersistentVolumeClaim": "persistentvolumeclaim-v1",
	}},
	{"sigs.k8s.io/jobset", "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml", map[string]string{"": "jobset-jobset-v1alpha2"}},
	{"github.com/kubeflow/trainer/v2", "manifests/base/crds/trainer.kubeflow.org_clustertrainingruntimes.yaml", map[string]string{"": "clustertrainingruntime-trainer-v1alpha1"}},
	{"github.com/kubeflow/trainer/v2", "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml", map[string]string{"": "trainjob-trainer-v1alpha1"}},
}

func main() {
	log.SetFlags(0)
	for _, s := range sources {
		dir, err := download(s.module)
		if err != nil {
			log.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, s.file))
		if err != nil {
			log.Fatal(err)
		}
		var document struct {
			Components struct{ Schemas map[string]map[string]any }
			Spec       struct {
				Versions []struct {
					Schema struct {
						OpenAPIV3Schema map[string]any `json:"openAPIV3Schema"`
					}
				}
			}
		}
		if err := yaml.Unmarshal(text, &document); err != nil {
			log.Fatalf("%s: %v", s.file, err)
		}
		for name, file := range s.kinds {
			root := document.Components.Schemas[name]
			if name == "" {
				if n := len(document.Spec.Versions); n != 1 {
					log.Fatalf("%s has %d versions, want 1", s.file, n)
				}
				root = document.Spec.Versions[0].Schema.OpenAPIV3Schema
			}
			if err := write("schemas/"+file+".json", root, document.Components.Schemas); err != nil {
				log.Fatal(err)
			}
		}
	}
}

// download returns the folder of a module.
func download(module string) (dir string, err error) {
	out, err := exec.Command("go", "mod", "download", "-json", module).Output()
	if err != nil {
		return "", fmt.Errorf("downloading %s: %w\n%s", module, err, out)
	}
	var m struct{ Dir string }
	return m.Dir, json.Unmarshal(out, &m)
}

// write writes the schema of a kind, with the definitions that it refers to.
func write(file string, root map[string]any, all map[string]map[string]any) error {
	if properties, ok := root["properties"].(map[string]any); ok {
		delete(properties, "status") // that the cluster writes
	}
	c := cutter{all: all, definitions: map[string]any{}}
	schema := c.cut(root)
	if len(c.definitions) > 0 {
		schema["definitions"] = c.definitions
	}
	text, err := json.Marshal(schema)
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// cutter cuts schemas, and collects the definitions that they refer to.
type cutter struct {
	all         map[string]map[string]any
	definitions map[string]any
}

// kept are the keywords that a schema keeps as they are.
var kept = []string{"type", "required", "enum", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "pattern"}

const reference = "#/components/schemas/"

// cut returns a schema in JSON Schema's terms.
func (c *cutter) cut(from map[string]any) map[string]any {
	to := map[string]any{}
	for _, keyword := range kept {
		if v, ok := from[keyword]; ok {
			to[keyword] = v
		}
	}
	if ref, ok := from["$ref"].(string); ok {
		name := strings.TrimPrefix(ref, reference)
		to["$ref"] = "#/definitions/" + name
		if _, ok := c.definitions[name]; !ok {
			c.definitions[name] = nil // a definition may refer to itself
			c.definitions[name] = c.cut(c.all[name])
		}
	}
	if properties, ok := from["properties"].(map[string]any); ok {
		cut := map[string]any{}
		for name, p := range properties {
			cut[name] = c.cut(p.(map[string]any))
		}
		to["properties"], to["additionalProperties"] = cut, false
	}
	for _, keyword := range []string{"items", "additionalProperties"} {
		if s, ok := from[keyword].(map[string]any); ok {
			to[keyword] = c.cut(s)
		}
	}
	for _, keyword := range []string{"allOf", "anyOf", "oneOf"} {
		if alternatives, ok := from[keyword].([]any); ok {
			var cut []any
			for _, a := range alternatives {
				cut = append(cut, c.cut(a.(map[string]any)))
			}
			to[keyword] = cut
		}
	}
	if from["x-kubernetes-preserve-unknown-fields"] == true {
		delete(to, "additionalProperties")
	}
	return to
}
