//! Deploys (attempts) and deployments (what came of them).

use scafo_core::{
    ApplicationName, DeployId, DeploymentVersion, Problem, ProblemCode, key,
    record::{DeployRecord, DeployState, DeploymentRecord},
};

use serde::Deserialize;

use super::{Cache, Changed, Intent, Registry, Stored, engine::RECORD_BYTES_MAX};

impl Registry {
    /// Files a deploy that was just accepted. The same id again answers the record that stands.
    ///
    /// # Errors
    /// Store errors.
    pub async fn create_deploy(&self, deploy: &DeployRecord) -> Result<Changed<DeployRecord>, Problem> {
        self.engine().create(&Intent::new(), deploy).await
    }

    /// The deploy. A record of another application under this id is nobody's.
    ///
    /// # Errors
    /// `not-found`; store errors.
    pub async fn deploy(&self, id: &DeployId) -> Result<Stored<DeployRecord>, Problem> {
        let there = match self.engine().try_load(&key::deploy(id)).await {
            Err(problem) if problem.code == ProblemCode::StoreNonconforming && self.is_misfiled(id).await? => None,
            there => there?,
        };
        there.ok_or_else(|| {
            let detail =
                format!("there is no deploy `{id}`: a record is kept for seven days after the deploy finishes");
            Problem::new(ProblemCode::NotFound, detail)
        })
    }

    /// Whether the record under this id says that it belongs to another application than the id.
    async fn is_misfiled(&self, id: &DeployId) -> Result<bool, Problem> {
        #[derive(Deserialize)]
        struct Owner {
            application: ApplicationName,
        }
        let object = self.engine().try_get(&key::deploy(id), RECORD_BYTES_MAX).await?;
        let owner = object.and_then(|object| serde_json::from_slice::<Owner>(&object.body).ok());
        Ok(owner.is_some_and(|owner| owner.application != id.application()))
    }

    /// Removes the record of a deploy, whose id never comes again.
    ///
    /// # Errors
    /// Store errors.
    pub async fn forget_deploy(&self, id: &DeployId) -> Result<(), Problem> {
        self.engine().delete(&Intent::new(), &key::deploy(id)).await
    }

    /// Moves a deploy on, never back, and not at all once it has finished.
    ///
    /// # Errors
    /// `cas-conflict` once it has finished or when it is further than that already; `not-found`; what `mutate` refuses; store
    /// errors.
    pub async fn update_deploy(
        &self,
        intent: &Intent,
        id: &DeployId,
        mut mutate: impl FnMut(&mut DeployRecord) -> Result<(), Problem> + Send,
    ) -> Result<Changed<DeployRecord>, Problem> {
        self.engine()
            .update(intent, &key::deploy(id), |deploy: &mut DeployRecord| {
                let before = deploy.state;
                if before.is_terminal() {
                    let detail = format!("deploy `{id}` ended as {} and never moves again", before.as_str());
                    return Err(Problem::new(ProblemCode::CasConflict, detail).titled("Deploy has already finished"));
                }
                mutate(deploy)?;
                if stage(deploy.state) < stage(before) {
                    let detail = format!("deploy `{id}` is {} already", before.as_str());
                    return Err(Problem::new(ProblemCode::CasConflict, detail));
                }
                Ok(())
            })
            .await
    }

    /// Every readable deploy of one application, oldest first.
    ///
    /// # Errors
    /// Store errors.
    pub async fn deploys(&self, name: &ApplicationName) -> Result<Vec<DeployRecord>, Problem> {
        let mut cache: Cache<DeployRecord> = Cache::under(key::deploys(name));
        cache.refresh_patiently(self.engine()).await?;
        let mut deploys: Vec<_> = cache.iter().map(|stored| stored.record.clone()).collect();
        deploys.sort_by(|a, b| (a.accepted_at, &a.id).cmp(&(b.accepted_at, &b.id)));
        Ok(deploys)
    }

    /// Files a deployment. Filing the same again, but for `createdAt`, answers the record that stands.
    ///
    /// # Errors
    /// `immutable` if another one stands under this version; store errors.
    pub async fn record_deployment(&self, deployment: &DeploymentRecord) -> Result<DeploymentRecord, Problem> {
        let there = self.engine().create(&Intent::new(), deployment).await?.stored.record;
        let same = DeploymentRecord { created_at: deployment.created_at, ..there.clone() } == *deployment;
        if same {
            return Ok(there);
        }
        let detail = format!("version `{}` of `{}` was recorded by another deploy", there.version, there.application);
        Err(Problem::new(ProblemCode::Immutable, detail).titled("Deployment already exists"))
    }

    /// The deployment of this version, if one was recorded. Versions are content ids: they come again.
    ///
    /// # Errors
    /// Store errors.
    pub async fn deployment(
        &self,
        name: &ApplicationName,
        version: &DeploymentVersion,
    ) -> Result<Option<Stored<DeploymentRecord>>, Problem> {
        self.engine().try_load(&key::deployment(name, version)).await
    }

    /// Every readable deployment of one application, oldest first.
    ///
    /// # Errors
    /// Store errors.
    pub async fn deployments(&self, name: &ApplicationName) -> Result<Vec<DeploymentRecord>, Problem> {
        let mut cache: Cache<DeploymentRecord> = Cache::under(key::deployments(name));
        cache.refresh_patiently(self.engine()).await?;
        let mut deployments: Vec<_> = cache.iter().map(|stored| stored.record.clone()).collect();
        deployments.sort_by(|a, b| (a.created_at, &a.version).cmp(&(b.created_at, &b.version)));
        Ok(deployments)
    }
}

const fn stage(state: DeployState) -> u8 {
    match state {
        DeployState::Accepted => 0,
        DeployState::Uploading => 1,
        DeployState::Deployed | DeployState::Failed => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing::{World, deploy, deployment, put_raw};

    #[tokio::test(start_paused = true)]
    async fn a_record_filed_under_another_applications_id_is_not_found_and_a_damaged_one_is_named() {
        let world = World::new();
        let record = deploy(&world, 1);
        let mut body = serde_json::to_value(&record).unwrap();
        body["application"] = "other".into();
        put_raw(&world.memory, &key::deploy(&record.id), &body.to_string()).await;
        assert_eq!(world.registry.deploy(&record.id).await.unwrap_err().code, ProblemCode::NotFound);
        put_raw(&world.memory, &key::deploy(&record.id), "{").await;
        assert_eq!(world.registry.deploy(&record.id).await.unwrap_err().code, ProblemCode::StoreNonconforming);
    }

    #[tokio::test(start_paused = true)]
    async fn a_finished_deploy_never_moves_again() {
        let world = World::new();
        let record = deploy(&world, 1);
        assert!(world.registry.create_deploy(&record).await.unwrap().written);
        assert!(!world.registry.create_deploy(&record).await.unwrap().written);
        let set = async |state| {
            let mutate = |deploy: &mut DeployRecord| {
                deploy.state = state;
                Ok(())
            };
            world.registry.update_deploy(&Intent::new(), &record.id, mutate).await
        };
        set(DeployState::Uploading).await.unwrap();
        assert_eq!(set(DeployState::Accepted).await.unwrap_err().code, ProblemCode::CasConflict);
        set(DeployState::Deployed).await.unwrap();
        for state in [DeployState::Accepted, DeployState::Uploading, DeployState::Deployed, DeployState::Failed] {
            let refused = set(state).await.unwrap_err();
            assert_eq!((refused.code, refused.title()), (ProblemCode::CasConflict, "Deploy has already finished"));
        }
        assert_eq!(world.registry.deploy(&record.id).await.unwrap().record.state, DeployState::Deployed);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deploy_whose_record_is_gone_is_not_found_with_the_reason() {
        let world = World::new();
        let missing = world.registry.deploy(&deploy(&world, 1).id).await.unwrap_err();
        assert_eq!(missing.code, ProblemCode::NotFound);
        assert!(missing.detail.contains("seven days"), "{missing}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_deployment_is_recorded_once_and_is_idempotent_but_for_its_time() {
        let world = World::new();
        let first = deployment(&world, "v1", 1);
        assert_eq!(world.registry.record_deployment(&first).await.unwrap(), first);
        let later =
            DeploymentRecord { created_at: first.created_at.after(std::time::Duration::from_secs(9)), ..first.clone() };
        assert_eq!(world.registry.record_deployment(&later).await.unwrap(), first);
        let other = DeploymentRecord { by: "somebody else".to_owned(), ..first.clone() };
        let refused = world.registry.record_deployment(&other).await.unwrap_err();
        assert_eq!((refused.code, refused.title()), (ProblemCode::Immutable, "Deployment already exists"));
        assert_eq!(world.registry.deployments(&first.application).await.unwrap(), [first]);
    }

    #[tokio::test(start_paused = true)]
    async fn deploys_of_one_application_do_not_take_in_its_neighbours() {
        let world = World::new();
        world.registry.create_deploy(&deploy(&world, 1)).await.unwrap();
        let neighbour: ApplicationName = "shop-preview".parse().unwrap();
        let mut other = deploy(&world, 2);
        other.id = DeployId::new(&neighbour, 2);
        other.application = neighbour;
        world.registry.create_deploy(&other).await.unwrap();
        let found = world.registry.deploys(&"shop".parse().unwrap()).await.unwrap();
        assert_eq!(found.len(), 1);
    }
}
