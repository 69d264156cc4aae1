package scheduler

import (
	"slices"
	"strconv"
	"strings"

	"hoss.dev/examples/hossv1"
)

const cordonTaint = "node.kubernetes.io/unschedulable"

// unsupported names what of the spec this package does not take into account, though it must; empty: nothing.
func unsupported(spec *hossv1.PodSpec) string {
	var found []string
	affinity := spec.GetPodAffinity()
	if len(affinity.GetRequired())+len(affinity.GetAntiRequired()) > 0 {
		found = append(found, "required pod affinity or anti-affinity")
	}
	if slices.ContainsFunc(spec.Spread, func(c *hossv1.SpreadConstraint) bool { return !c.ScheduleAnyway }) {
		found = append(found, "required topology spread")
	}
	for name, given := range map[string]bool{
		"volumes":         spec.Volumes != nil,
		"resource claims": spec.Claims != nil,
		"host ports":      len(spec.HostPorts) > 0,
		"cards":           spec.Devices != nil,
	} {
		if given {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return strings.Join(found, ", ")
}

// admits tells whether the node's name, labels and taints let such a pod in: kube-scheduler's NodeName,
// NodeAffinity and TaintToleration, and the nodes of the policy's rule. Cordons are the caller's.
func admits(spec *hossv1.PodSpec, scope *hossv1.NodeScope, node *hossv1.NodeSpec) bool {
	if spec.NodeName != "" && spec.NodeName != node.Name {
		return false
	}
	labels := labelsOf(node.Labels)
	for _, wanted := range spec.NodeSelector {
		if value, has := labels[wanted.Key]; !has || value != wanted.Value {
			return false
		}
	}
	if required := spec.RequiredNodeAffinity; required != nil && !selects(required, labels, node.Name) {
		return false
	}
	if scope.GetRequired() && !all(scope.Requirements, labels) {
		return false
	}
	for _, taint := range node.Taints {
		if taint.Effect != "PreferNoSchedule" && !tolerated(spec, taint) {
			return false
		}
	}
	return true
}

func labelsOf(labels []*hossv1.Label) map[string]string {
	found := make(map[string]string, len(labels))
	for _, label := range labels {
		found[label.Key] = label.Value
	}
	return found
}

// tolerated is core/v1's ToleratesTaint, over all tolerations.
func tolerated(spec *hossv1.PodSpec, taint *hossv1.Taint) bool {
	return slices.ContainsFunc(spec.Tolerations, func(t *hossv1.Toleration) bool {
		return (t.Effect == "" || t.Effect == taint.Effect) && (t.Key == "" || t.Key == taint.Key) &&
			(t.Operator == "Exists" || t.Value == taint.Value)
	})
}

func toleratesCordon(spec *hossv1.PodSpec) bool {
	return tolerated(spec, &hossv1.Taint{Key: cordonTaint, Effect: "NoSchedule"})
}

// selects: one term matches. An empty term matches nothing.
func selects(selector *hossv1.NodeSelector, labels map[string]string, name string) bool {
	fields := map[string]string{"metadata.name": name}
	return slices.ContainsFunc(selector.Terms, func(term *hossv1.NodeSelectorTerm) bool {
		return len(term.MatchExpressions)+len(term.MatchFields) > 0 &&
			all(term.MatchExpressions, labels) && all(term.MatchFields, fields)
	})
}

func all(requirements []*hossv1.Requirement, labels map[string]string) bool {
	for _, requirement := range requirements {
		if !matches(requirement, labels) {
			return false
		}
	}
	return true
}

// matches: NotIn and DoesNotExist match where the key is missing; Gt and Lt only compare 64-bit integers.
func matches(requirement *hossv1.Requirement, labels map[string]string) bool {
	value, present := labels[requirement.Key]
	switch requirement.Operator {
	case "In":
		return present && slices.Contains(requirement.Values, value)
	case "NotIn":
		return !present || !slices.Contains(requirement.Values, value)
	case "Exists":
		return present
	case "DoesNotExist":
		return !present
	case "Gt", "Lt":
		if !present || len(requirement.Values) != 1 {
			return false
		}
		have, err := strconv.ParseInt(value, 10, 64)
		limit, wrong := strconv.ParseInt(requirement.Values[0], 10, 64)
		return err == nil && wrong == nil && ((requirement.Operator == "Gt") == (have > limit)) && have != limit
	}
	return false
}

// repels tells whether a term of other pods' required anti-affinity may be about such a pod. Namespaces'
// labels are not known here, so a term that selects namespaces by label counts for all of them.
func repels(term *hossv1.PodAffinityTerm, spec *hossv1.PodSpec, labels map[string]string) bool {
	return term.Selector != nil && all(term.Selector.Requirements, labels) &&
		(term.NamespaceSelector != nil || slices.Contains(term.Namespaces, spec.Namespace))
}
