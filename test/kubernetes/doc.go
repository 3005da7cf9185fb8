// Package kubernetes tests the manifests of examples/kubernetes and the Dockerfile.
//
// kubeconform validates the manifests against the schemas in the folder schemas, which cutschemas extracts
// from those of Kubernetes, JobSet and Kubeflow Trainer. Then the containers' commands run with their
// environments, each pod on its own emulated host.
//
// It is a separate module, so that programs which use goddp do not depend on Kubernetes.
package kubernetes
