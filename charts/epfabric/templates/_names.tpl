{{- /* Names that templates share; the fixed ones are the API's and stand in crds/epfabric_crds. */ -}}

{{- define "epfabric.labels" -}}
app.kubernetes.io/part-of: epfabric
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* Ours and `labels`, which count where both have one: no key comes twice. */ -}}
{{- define "epfabric.labelsAnd" -}}
{{- toYaml (merge (dict) .labels (fromYaml (include "epfabric.labels" .root))) }}
{{- end }}

{{- /* Of an account: the pods that the operator makes get them from there too. */ -}}
{{- define "epfabric.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "epfabric.operatorUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:epfabric-operator
{{- end }}

{{- /* Where what needs privileges runs: agents and CSI driver. The operator's is the release's. */ -}}
{{- define "epfabric.nodesNamespace" -}}
epfabric-nodes
{{- end }}

{{- define "epfabric.agentUser" -}}
system:serviceaccount:{{ include "epfabric.nodesNamespace" . }}:epfabric-agent
{{- end }}

{{- define "epfabric.policyVersion" -}}
{{- $group := "admissionregistration.k8s.io" -}}
{{- if .Values.injection.policyVersion -}}
{{ $group }}/{{ .Values.injection.policyVersion }}
{{- else if .Capabilities.APIVersions.Has (printf "%s/v1/MutatingAdmissionPolicy" $group) -}}
{{ $group }}/v1
{{- else if .Capabilities.APIVersions.Has (printf "%s/v1beta1/MutatingAdmissionPolicy" $group) -}}
{{ $group }}/v1beta1
{{- end -}}
{{- end }}

{{- /* `policy` or `webhook`: what gives pods their volume. */ -}}
{{- define "epfabric.injectionMode" -}}
{{- $served := include "epfabric.policyVersion" . -}}
{{- if ne .Values.injection.mode "auto" -}}
{{- if and (eq .Values.injection.mode "policy") (not $served) -}}
{{- fail "injection.mode is policy, but this cluster serves no MutatingAdmissionPolicy: use Kubernetes 1.36 or newer, switch admissionregistration.k8s.io/v1beta1 on in 1.34 or 1.35, or leave injection.mode at auto for the webhook; where the chart is rendered without a cluster, set injection.policyVersion" -}}
{{- end -}}
{{ .Values.injection.mode }}
{{- else if $served -}}
policy
{{- else -}}
webhook
{{- end -}}
{{- end }}

{{- /* The agents look for their objects in this namespace; lint renders in none. */ -}}
{{- define "epfabric.checkNamespace" -}}
{{- if not (has .Release.Namespace (list "epfabric-system" "")) -}}
{{- fail (printf "install EPFabric into the namespace epfabric-system, not %s: helm install -n epfabric-system --create-namespace" .Release.Namespace) -}}
{{- end -}}
{{- end }}
