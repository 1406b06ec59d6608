{{/* Name of the operator's objects. A release's name may contain dots, which are valid in names of ServiceAccounts and labels but not in DNS labels. */}}
{{- define "v4serve.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $release := .Release.Name | replace "." "-" -}}
{{- ternary $release (printf "%s-%s" $release .Chart.Name) (contains .Chart.Name $release) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Name of objects outside the release's namespace: releases with the same name in two namespaces must not share it. */}}
{{- define "v4serve.clusterName" -}}
{{- printf "%s-%s" (include "v4serve.fullname" .) .Release.Namespace -}}
{{- end -}}

{{- define "v4serve.serviceAccountName" -}}
{{- if .Values.operator.serviceAccount.create -}}
{{- .Values.operator.serviceAccount.name | default (include "v4serve.fullname" .) -}}
{{- else -}}
{{- required "operator.serviceAccount.name: name the existing ServiceAccount, or set operator.serviceAccount.create=true" .Values.operator.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Selector labels of the operator's pods; they never change for a release. */}}
{{- define "v4serve.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end -}}

{{/* Labels of every object. The chart's own labels override global.labels. */}}
{{- define "v4serve.labels" -}}
{{- $own := dict
  "app.kubernetes.io/name" .Chart.Name
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/component" "operator"
  "app.kubernetes.io/part-of" "v4serve"
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") -}}
{{- toYaml (merge $own .Values.global.labels) -}}
{{- end -}}

{{/* Labels of the test's objects. They differ from the labels of the operator's pods, which policies and budgets select. */}}
{{- define "v4serve.testLabels" -}}
{{- toYaml (merge (dict "app.kubernetes.io/component" "test") (include "v4serve.labels" . | fromYaml)) -}}
{{- end -}}

{{/* Reference of an image: (dict "context" ROOT "name" SETTING "image" ONE). It is checked here, since an invalid one would otherwise fail only on the node. */}}
{{- define "v4serve.image" -}}
{{- $host := "([A-Za-z0-9]([-.A-Za-z0-9]*[A-Za-z0-9])?|\\[[0-9a-fA-F:]+\\])(:[0-9]+)?" -}}
{{- $part := "[a-z0-9]+((\\.|_|__|-+)[a-z0-9]+)*" -}}
{{- $name := .image.repository -}}
{{- if not (regexMatch (printf "^(%s/)?%s(/%s)*$" $host $part $part) $name) -}}
{{- fail (printf "%s.repository: %q is not a valid repository: write its name of a-z, 0-9 and '/', optionally after host[:port]/, without a scheme and without a tag, such as registry.example.com/v4serve-worker" .name $name) -}}
{{- end -}}
{{- with .context.Values.global.imageRegistry -}}
{{- if not (regexMatch (printf "^%s(/%s)*/?$" $host $part) .) -}}
{{- fail (printf "global.imageRegistry: %q is not a valid registry: write host[:port][/path] without a scheme, such as registry.example.com/mirror" .) -}}
{{- end -}}
{{- $name = printf "%s/%s" (trimSuffix "/" .) $name -}}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- $tag := .image.tag | default .context.Chart.AppVersion -}}
{{- if not (regexMatch "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$" $tag) -}}
{{- fail (printf "%s.tag: %q is not a valid tag: write at most 128 letters, digits, '_', '.' and '-'; a digest is set with %s.digest" .name $tag .name) -}}
{{- end -}}
{{- printf "%s:%s" $name $tag -}}
{{- end -}}
{{- end -}}

{{/* Names of the pull secrets as a JSON list, for `fromJsonArray`. */}}
{{- define "v4serve.pullSecrets" -}}
{{- $names := list -}}
{{- range .Values.global.imagePullSecrets -}}
{{- if kindIs "map" . -}}
{{- $names = append $names .name -}}
{{- else -}}
{{- $names = append $names . -}}
{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{/* "" if this release may write the CRD, because it does not exist or belongs to this release; otherwise the owner's description. */}}
{{- define "v4serve.crdOwner" -}}
{{- $live := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "v4deployments.v4serve.dev" -}}
{{- if $live -}}
{{- $annotations := $live.metadata.annotations | default dict -}}
{{- $release := get $annotations "meta.helm.sh/release-name" -}}
{{- $namespace := get $annotations "meta.helm.sh/release-namespace" -}}
{{- if not $release -}}
no release
{{- else if or (ne $release .Release.Name) (ne $namespace .Release.Namespace) -}}
{{- printf "release %s in namespace %s" $release $namespace -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Namespace of `helm test`: one that the operator watches. */}}
{{- define "v4serve.testNamespace" -}}
{{- $watched := .Values.watch.namespaces -}}
{{- if .Values.tests.namespace -}}
{{- .Values.tests.namespace -}}
{{- else if and $watched (not (has .Release.Namespace $watched)) -}}
{{- first $watched -}}
{{- else -}}
{{- .Release.Namespace -}}
{{- end -}}
{{- end -}}

{{/* Name of the test's pod and of the V4Deployment that it creates: a DNS label of at most 40 characters. */}}
{{- define "v4serve.testName" -}}
{{- printf "test-%s" (include "v4serve.fullname" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* "true" if objects of a Prometheus Operator kind are created: (dict "context" ROOT "enabled" VALUE "kind" KIND). */}}
{{- define "v4serve.wanted" -}}
{{- if eq (toString .enabled) "auto" -}}
{{- .context.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind) -}}
{{- else -}}
{{- .enabled -}}
{{- end -}}
{{- end -}}

{{/* Labels of PodMonitor, ServiceMonitor and PrometheusRules. */}}
{{- define "v4serve.monitoringLabels" -}}
{{- toYaml (merge (include "v4serve.labels" . | fromYaml) .Values.monitoring.labels) -}}
{{- end -}}

{{/* An objective in seconds as the value of the histogram label `le`: (dict "name" NAME "seconds" VALUE). */}}
{{- define "v4serve.bucket" -}}
{{- $bounds := list "0.0005" "0.001" "0.0025" "0.005" "0.01" "0.025" "0.05" "0.1" "0.25" "0.5" "1.0" "2.5" "5.0" "10.0" "30.0" "60.0" "120.0" "300.0" -}}
{{- $text := toString .seconds -}}
{{- $bound := contains "." $text | ternary $text (printf "%s.0" $text) -}}
{{- if not (has $bound $bounds) -}}
{{- fail (printf "monitoring.slo.%s: %s is not a bucket bound of the histogram: choose one of %s" .name $text (join ", " $bounds)) -}}
{{- end -}}
{{- $bound -}}
{{- end -}}
