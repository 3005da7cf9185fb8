// Package kubernetes tests the manifests of examples/kubernetes and the Dockerfile.
//
// kubeconform validates the manifests against the folder schemas, which cutschemas makes of what Kubernetes,
// JobSet and Kubeflow Trainer publish. Then the containers' commands run with their environments, each pod as
// a host of its own.
//
// It is a module of its own, so that programs which use goddp do not depend on Kubernetes.
package kubernetes
